"""Jobs: from a folder of images to a bundle, a page, a table or training data, resumable."""
