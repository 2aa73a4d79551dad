"""Writes the next migration: what tables.py has and the last one does not.

``python -m leapfactual.people.store.migrations "add a column for this"``, then read what it wrote.
Alembic compares tables, columns, indices and keys; it does not see constraints that check values.
There is no way down: who needs an older version restores a copy of the campaign.
"""

import sys
import tempfile
from pathlib import Path

from alembic import command
from sqlalchemy import create_engine

from leapfactual.people.store.database import alembic_config


def main(message: str) -> None:
    """Writes a migration to the folder of versions.

    Arguments:
        message: What it does, in a few words.
    """
    config = alembic_config()
    number = len([*(Path(__file__).parent / "versions").glob("[0-9]*.py")])
    with tempfile.TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{folder}/schema.db")
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            command.revision(config, message, autogenerate=True, rev_id=f"{number + 1:04d}")
        engine.dispose()


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]))
