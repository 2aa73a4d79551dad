"""The paper's studies, and one of people who vote: ``python -m studies --help``.

They use the library as anybody would, and are no part of the package that is installed. The toy is
one file, to be read from top to bottom; each of the others is a folder, whose ``__init__`` says
what is studied, where we differ from the paper, and in which order things are done:

=================  =============================================================================
study              what it shows
=================  =============================================================================
``squares``        the toy: lifting, landing, replacement, blending and injection in the plane
``morpho_mnist``   the main table: LeapFactual and both rivals on handwritten digits
``galaxies``       whether reliable counterfactuals make a weak classifier better
``faces``          faces of 1024 × 1024 and a black box that says who smiles
``photographs``    leaves, faces and galaxies with what ``fit`` trains by itself
``people``         a simulated crowd that votes on digits over HTTP
=================  =============================================================================

In a folder, ``training`` has the settings and what is trained, ``tables`` or ``comparison`` what
is measured, ``figures`` what is drawn. ``state`` lets an interrupted study resume; ``truncated``
reads shorter walks off a long one.
"""
