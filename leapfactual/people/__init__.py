"""People as the classifier: a campaign asks volunteers, and every leap waits for their consensus.

========================  ==================================================================
:mod:`.consensus`         when votes are a consensus: majority, Dawid–Skene; agreement
:mod:`.questions`         which frames to ask about next: step, batch, bisect
:mod:`.store`             the tables, and the database: SQLite or PostgreSQL
:mod:`.transitions`       what follows from votes: consensus, the next round, the next job
:mod:`.votes`             votes, each in one transaction; :mod:`.assignment` who sees what
:mod:`.campaigns`         invite, pause, change the rule; :mod:`.exclusion` voids a person
:mod:`.creation`          creates a campaign; :mod:`.worker` computes its frames
:mod:`.status`            how it stands; :mod:`.results` what came of it
:mod:`.audit`             replays the event log, and compares
:mod:`.exchange`          votes in and out, as files of Zooniverse and Label Studio
:mod:`.web`               the page that people vote on
========================  ==================================================================

What an owner's script needs is here, imported when it is first used: the web server works without
torch, which creating, computing and results need.

Example:
    >>> from leapfactual import people
    >>> people.Rule(least=2).decide([3, 3])
    3
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .audit import replay
    from .campaigns import (
        CampaignSettings,
        invite,
        invite_all,
        pause,
        renew,
        renew_owner,
        retry,
        update_rule,
    )
    from .consensus import Rule
    from .creation import create, create_from_files
    from .exchange.interchange import export_votes, import_votes
    from .exclusion import void
    from .results import explanations, write_results
    from .status import overview, parse_outcome, run_history
    from .store.database import Database
    from .votes import adjudicate
    from .web.server import serve
    from .worker import Worker

__all__ = [
    "CampaignSettings",
    "Database",
    "Rule",
    "Worker",
    "adjudicate",
    "create",
    "create_from_files",
    "explanations",
    "export_votes",
    "import_votes",
    "invite",
    "invite_all",
    "overview",
    "parse_outcome",
    "pause",
    "renew",
    "renew_owner",
    "replay",
    "retry",
    "run_history",
    "serve",
    "update_rule",
    "void",
    "write_results",
]

_MODULES = {
    "audit": ("replay",),
    "campaigns": (
        "CampaignSettings",
        "invite",
        "invite_all",
        "pause",
        "renew",
        "renew_owner",
        "retry",
        "update_rule",
    ),
    "consensus": ("Rule",),
    "creation": ("create", "create_from_files"),
    "exchange.interchange": ("export_votes", "import_votes"),
    "exclusion": ("void",),
    "results": ("explanations", "write_results"),
    "status": ("overview", "parse_outcome", "run_history"),
    "store.database": ("Database",),
    "votes": ("adjudicate",),
    "web.server": ("serve",),
    "worker": ("Worker",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - of any module
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
