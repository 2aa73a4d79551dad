"""Creates the tables of a campaign."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates the tables of a campaign."""
    op.create_table(
        "annotator",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("token_sha256", sa.String(length=64), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("voided", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_annotator")),
        sa.UniqueConstraint("name", name=op.f("uq_annotator_name")),
        sa.UniqueConstraint("token_sha256", name=op.f("uq_annotator_token_sha256")),
    )
    op.create_table(
        "asset",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("media", sa.String(length=32), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_asset")),
    )
    op.create_table(
        "campaign",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("bundle", sa.Text(), nullable=False),
        sa.Column("bundle_sha256", sa.String(length=64), nullable=False),
        sa.Column("question", sa.Text(), nullable=False),
        sa.Column("classes", sa.JSON(), nullable=False),
        sa.Column("plan", sa.Text(), nullable=False),
        sa.Column("mode", sa.String(length=16), nullable=False),
        sa.Column("max_frames", sa.Integer(), nullable=False),
        sa.Column("gold_share", sa.Double(), nullable=False),
        sa.Column("repeat_share", sa.Double(), nullable=False),
        sa.Column("lease", sa.Double(), nullable=False),
        sa.Column("seed", sa.Integer(), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("owner_sha256", sa.String(length=64), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_campaign_only_one")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_campaign")),
    )
    op.create_table(
        "event",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_event")),
    )
    op.create_table(
        "rule",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rule")),
    )
    op.create_table(
        "run",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("target", sa.Integer(), nullable=False),
        sa.Column("asset", sa.String(length=64), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("doubted", sa.Boolean(), nullable=False),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("finished", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["asset"], ["asset.sha256"], name=op.f("fk_run_asset")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run")),
        sa.UniqueConstraint("name", name=op.f("uq_run_name")),
    )
    with op.batch_alter_table("run", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_run_status"), ["status"], unique=False)

    op.create_table(
        "job",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("input_sha256", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=8), nullable=False),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("until", sa.Double(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_job_run_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job")),
        sa.UniqueConstraint("input_sha256", name=op.f("uq_job_input_sha256")),
    )
    with op.batch_alter_table("job", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_job_run_id"), ["run_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_job_state"), ["state"], unique=False)

    op.create_table(
        "segment",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("assumed", sa.Integer(), nullable=True),
        sa.Column("frames", sa.Integer(), nullable=False),
        sa.Column("discarded", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_segment_run_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_segment")),
    )
    with op.batch_alter_table("segment", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_segment_run_id"), ["run_id"], unique=False)
        batch_op.create_index(
            "uq_segment_run_id_number",
            ["run_id", "number"],
            unique=True,
            sqlite_where=sa.text("NOT discarded"),
            postgresql_where=sa.text("NOT discarded"),
        )

    op.create_table(
        "frame",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("segment_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("asset", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["asset"], ["asset.sha256"], name=op.f("fk_frame_asset")),
        sa.ForeignKeyConstraint(["segment_id"], ["segment.id"], name=op.f("fk_frame_segment_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_frame")),
        sa.UniqueConstraint("segment_id", "position", name=op.f("uq_frame_segment_id_position")),
    )
    with op.batch_alter_table("frame", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_frame_segment_id"), ["segment_id"], unique=False)

    op.create_table(
        "round",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("segment_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("opened", sa.Double(), nullable=False),
        sa.Column("closed", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["segment_id"], ["segment.id"], name=op.f("fk_round_segment_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_round")),
        sa.UniqueConstraint("segment_id", "number", name=op.f("uq_round_segment_id_number")),
    )
    with op.batch_alter_table("round", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_round_segment_id"), ["segment_id"], unique=False)

    op.create_table(
        "task",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("state", sa.String(length=8), nullable=False),
        sa.Column("asset", sa.String(length=64), nullable=False),
        sa.Column("round_id", sa.Integer(), nullable=True),
        sa.Column("frame_id", sa.Integer(), nullable=True),
        sa.Column("annotator_id", sa.Integer(), nullable=True),
        sa.Column("truth", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["annotator_id"], ["annotator.id"], name=op.f("fk_task_annotator_id")
        ),
        sa.ForeignKeyConstraint(["asset"], ["asset.sha256"], name=op.f("fk_task_asset")),
        sa.ForeignKeyConstraint(["frame_id"], ["frame.id"], name=op.f("fk_task_frame_id")),
        sa.ForeignKeyConstraint(["round_id"], ["round.id"], name=op.f("fk_task_round_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_task")),
    )
    with op.batch_alter_table("task", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_task_annotator_id"), ["annotator_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_task_asset"), ["asset"], unique=False)
        batch_op.create_index(batch_op.f("ix_task_frame_id"), ["frame_id"], unique=False)
        batch_op.create_index("ix_task_kind_state_id", ["kind", "state", "id"], unique=False)
        batch_op.create_index(batch_op.f("ix_task_round_id"), ["round_id"], unique=False)
        batch_op.create_index(
            "uq_task_frame",
            ["frame_id"],
            unique=True,
            sqlite_where=sa.text("kind = 'frame'"),
            postgresql_where=sa.text("kind = 'frame'"),
        )

    op.create_table(
        "consensus",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("task_id", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("rule_id", sa.Integer(), nullable=True),
        sa.Column("outcome", sa.Integer(), nullable=False),
        sa.Column("votes", sa.Integer(), nullable=False),
        sa.Column("adjudicated", sa.Boolean(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["rule_id"], ["rule.id"], name=op.f("fk_consensus_rule_id")),
        sa.ForeignKeyConstraint(["task_id"], ["task.id"], name=op.f("fk_consensus_task_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_consensus")),
        sa.UniqueConstraint("task_id", "version", name=op.f("uq_consensus_task_id_version")),
    )
    with op.batch_alter_table("consensus", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_consensus_rule_id"), ["rule_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_consensus_task_id"), ["task_id"], unique=False)

    op.create_table(
        "lease",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("task_id", sa.Integer(), nullable=False),
        sa.Column("annotator_id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("taken", sa.Double(), nullable=False),
        sa.Column("expires", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["annotator_id"], ["annotator.id"], name=op.f("fk_lease_annotator_id")
        ),
        sa.ForeignKeyConstraint(["task_id"], ["task.id"], name=op.f("fk_lease_task_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_lease")),
        sa.UniqueConstraint("key", name=op.f("uq_lease_key")),
        sa.UniqueConstraint("task_id", "annotator_id", name=op.f("uq_lease_task_id_annotator_id")),
    )
    with op.batch_alter_table("lease", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_lease_annotator_id"), ["annotator_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_lease_task_id"), ["task_id"], unique=False)

    op.create_table(
        "vote",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("task_id", sa.Integer(), nullable=False),
        sa.Column("annotator_id", sa.Integer(), nullable=False),
        sa.Column("answer", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("counted", sa.Boolean(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["annotator_id"], ["annotator.id"], name=op.f("fk_vote_annotator_id")
        ),
        sa.ForeignKeyConstraint(["task_id"], ["task.id"], name=op.f("fk_vote_task_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_vote")),
        sa.UniqueConstraint("key", name=op.f("uq_vote_key")),
        sa.UniqueConstraint("task_id", "annotator_id", name=op.f("uq_vote_task_id_annotator_id")),
    )
    with op.batch_alter_table("vote", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_vote_annotator_id"), ["annotator_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_vote_task_id"), ["task_id"], unique=False)
