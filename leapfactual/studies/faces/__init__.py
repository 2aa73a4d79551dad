"""Faces: a GAN, a black box that says who smiles, and two networks that judge independently."""
