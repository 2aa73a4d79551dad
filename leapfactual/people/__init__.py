"""People as the classifier: a campaign asks volunteers, and every leap waits for their consensus.

======================  ====================================================================
:mod:`.rules`           when votes are a consensus: majority, Dawid–Skene; agreement
:mod:`.segments`        what to ask next: the walk ahead, as long as the label stays the same
:mod:`.tables`          what is kept, and :mod:`.database` how: SQLite or PostgreSQL
:mod:`.campaigns`       creating, inviting, pausing; :mod:`.voiding` takes people out
:mod:`.taking`          what a person is shown next
:mod:`.voting`          votes, and :mod:`.rounds` what follows from them, in one transaction
:mod:`.overviews`       how it stands; :mod:`.results` what was found
:mod:`.work`            the jobs: compute frames, finish runs
:mod:`.replay`          does the event log lead to what is there?
:mod:`.interchange`     votes in and out, as files of :mod:`.zooniverse` and :mod:`.label_studio`
:mod:`.web`             the page
======================  ====================================================================
"""
