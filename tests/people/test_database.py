"""The database: what migrations make is what the tables say."""

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, insert, inspect
from sqlalchemy.exc import IntegrityError

from leapfactual.people.store import tables as t
from leapfactual.people.store.database import Database, new_database


def flat(value):
    """Returns what an inspector says as text; conditions of indices with their SQL."""
    if isinstance(value, dict):
        return str({key: flat(part) for key, part in value.items()})
    return str(value)


def schema(connection):
    """Returns all that a database says of its tables, but for alembic's own."""
    inspector = inspect(connection)
    aspects = (
        inspector.get_columns,
        inspector.get_indexes,
        inspector.get_unique_constraints,
        inspector.get_foreign_keys,
        inspector.get_check_constraints,
    )
    found = {}
    for name in inspector.get_table_names():
        if name != "alembic_version":
            found[name] = [sorted(map(flat, aspect(name))) for aspect in aspects]
            found[name].append(str(inspector.get_pk_constraint(name)))
    return found


def test_migrations_make_what_the_tables_say(place, tmp_path):
    with new_database(place):
        pass
    db = Database(place)
    with db.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), t.metadata) == []
        migrated = schema(connection)
    db.close()
    if db.sqlite:
        engine = create_engine(f"sqlite:///{tmp_path / 'tables.db'}")
        t.metadata.create_all(engine)
        with engine.connect() as connection:
            assert migrated == schema(connection), "alembic does not compare everything"
        engine.dispose()
    assert migrated.keys() == t.metadata.tables.keys()


def test_a_database_holds_one_campaign(campaign):
    made = campaign()
    with made.db.engine.connect() as connection:
        row = connection.execute(t.campaign.select()).mappings().one()
        with pytest.raises(IntegrityError, match="only_one"):
            connection.execute(insert(t.campaign).values(**{**row, "id": 2}))
