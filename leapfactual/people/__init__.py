"""People as the classifier: a campaign asks volunteers, and every leap waits for their consensus.

======================  ====================================================================
:mod:`.rules`           when votes are a consensus: majority, Dawid–Skene; agreement
:mod:`.segments`        what to ask next: the walk ahead, as long as the label stays the same
:mod:`.tables`          what is kept, and :mod:`.database` how: SQLite or PostgreSQL
:mod:`.campaigns`       creating, inviting, pausing, voiding; status and results
:mod:`.voting`          taking a task, voting, and what follows, in one transaction
:mod:`.work`            the jobs: compute frames, finish runs
:mod:`.replay`          does the event log lead to what is there?
:mod:`.interchange`     votes in and out, as files of :mod:`.zooniverse` and :mod:`.label_studio`
:mod:`.web`             the page
======================  ====================================================================
"""
