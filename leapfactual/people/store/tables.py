"""The tables of a campaign; one database holds one campaign.

Votes and events are only ever added. What follows from votes, a consensus above all, is counted
from their rows each time, never from counters. A consensus that is replaced stays, with a version.
``Record`` is a row of any of these, or a part of a query.
"""

from typing import Any, TypeAlias

from sqlalchemy import (
    JSON,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Record: TypeAlias = Any
FRAME, GOLD, REPEAT = "frame", "gold", "repeat"
OPEN, RETIRED = "open", "retired"
QUEUED, LEASED, DONE, FAILED = "queued", "leased", "done", "failed"


def _reference(name: str, *, optional: bool = False) -> Column[int]:
    return Column(f"{name}_id", Integer, ForeignKey(f"{name}.id"), nullable=optional, index=True)


campaign = Table(
    "campaign",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False),
    Column("created", Double, nullable=False),
    Column("bundle", Text, nullable=False),
    Column("bundle_sha256", String(64), nullable=False),
    Column("question", Text, nullable=False),
    Column("classes", JSON, nullable=False),
    Column("plan", Text, nullable=False),
    Column("mode", String(16), nullable=False),
    Column("max_frames", Integer, nullable=False),
    Column("gold_share", Double, nullable=False),
    Column("repeat_share", Double, nullable=False),
    Column("lease", Double, nullable=False),
    Column("seed", Integer, nullable=False),
    Column("paused", Boolean, nullable=False),
    Column("owner_sha256", String(64), nullable=False),
    CheckConstraint("id = 1", name="only_one"),
)

rule = Table(
    "rule",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("created", Double, nullable=False),
    Column("content", JSON, nullable=False),
)

asset = Table(
    "asset",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("media", String(32), nullable=False),
    Column("content", LargeBinary, nullable=False),
)

annotator = Table(
    "annotator",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("token_sha256", String(64), nullable=False, unique=True),
    Column("created", Double, nullable=False),
    Column("voided", Double),
)

run = Table(
    "run",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("target", Integer, nullable=False),
    Column("asset", String(64), ForeignKey("asset.sha256"), nullable=False),
    Column("status", String(16), nullable=False, index=True),
    Column("reason", Text, nullable=False),
    Column("doubted", Boolean, nullable=False),
    Column("result", JSON),
    Column("finished", Double),
)

segment = Table(
    "segment",
    metadata,
    Column("id", Integer, primary_key=True),
    _reference("run"),
    Column("number", Integer, nullable=False),
    Column("assumed", Integer),
    Column("frames", Integer, nullable=False),
    Column("discarded", Boolean, nullable=False),
    Index(
        "uq_segment_run_id_number",
        "run_id",
        "number",
        unique=True,
        sqlite_where=text("NOT discarded"),
        postgresql_where=text("NOT discarded"),
    ),
)

frame = Table(
    "frame",
    metadata,
    Column("id", Integer, primary_key=True),
    _reference("segment"),
    Column("position", Integer, nullable=False),
    Column("asset", String(64), ForeignKey("asset.sha256"), nullable=False),
    UniqueConstraint("segment_id", "position"),
)

round_ = Table(
    "round",
    metadata,
    Column("id", Integer, primary_key=True),
    _reference("segment"),
    Column("number", Integer, nullable=False),
    Column("opened", Double, nullable=False),
    Column("closed", Double),
    UniqueConstraint("segment_id", "number"),
)

task = Table(
    "task",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("kind", String(8), nullable=False),
    Column("state", String(8), nullable=False),
    Column("asset", String(64), ForeignKey("asset.sha256"), nullable=False, index=True),
    _reference("round", optional=True),
    _reference("frame", optional=True),
    _reference("annotator", optional=True),
    Column("truth", Integer),
    Index("ix_task_kind_state_id", "kind", "state", "id"),
    Index(
        "uq_task_frame",
        "frame_id",
        unique=True,
        sqlite_where=text("kind = 'frame'"),
        postgresql_where=text("kind = 'frame'"),
    ),
)

lease = Table(
    "lease",
    metadata,
    Column("id", Integer, primary_key=True),
    _reference("task"),
    _reference("annotator"),
    Column("key", String(64), nullable=False, unique=True),
    Column("taken", Double, nullable=False),
    Column("expires", Double, nullable=False),
    UniqueConstraint("task_id", "annotator_id"),
)

vote = Table(
    "vote",
    metadata,
    Column("id", Integer, primary_key=True),
    _reference("task"),
    _reference("annotator"),
    Column("answer", Integer, nullable=False),
    Column("key", String(64), nullable=False, unique=True),
    Column("counted", Boolean, nullable=False),
    Column("created", Double, nullable=False),
    Column("seconds", Double, nullable=False),
    UniqueConstraint("task_id", "annotator_id"),
)

consensus = Table(
    "consensus",
    metadata,
    Column("id", Integer, primary_key=True),
    _reference("task"),
    Column("version", Integer, nullable=False),
    _reference("rule", optional=True),
    Column("outcome", Integer, nullable=False),
    Column("votes", Integer, nullable=False),
    Column("adjudicated", Boolean, nullable=False),
    Column("created", Double, nullable=False),
    UniqueConstraint("task_id", "version"),
)

job = Table(
    "job",
    metadata,
    Column("id", Integer, primary_key=True),
    _reference("run"),
    Column("input_sha256", String(64), nullable=False, unique=True),
    Column("state", String(8), nullable=False, index=True),
    Column("worker", Text),
    Column("until", Double),
    Column("attempts", Integer, nullable=False),
    Column("error", Text),
    Column("created", Double, nullable=False),
)

event = Table(
    "event",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("created", Double, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("content", JSON, nullable=False),
)
