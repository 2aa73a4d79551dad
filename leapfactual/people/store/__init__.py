"""The database of a campaign: its tables, its transactions and its migrations."""
