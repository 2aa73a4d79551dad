"""The page that people vote on, and the owner's overview. Works without JavaScript."""
