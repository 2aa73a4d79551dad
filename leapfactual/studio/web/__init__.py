"""The studio's page, and what it talks to."""
