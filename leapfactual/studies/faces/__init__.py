"""Faces: a GAN, and a black box that says who smiles."""
