"""Faces of 1024 × 1024 that a GAN draws, and a classifier that says who smiles."""
