"""Faces of 1024 × 1024 that a GAN draws, and a black box that says who smiles."""
