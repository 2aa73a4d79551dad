"""The paper's studies, one file each, to be read from top to bottom and copied."""
