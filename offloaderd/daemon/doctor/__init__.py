"""The doctor: checks everything that the daemon needs, from the machine where it runs, each result with a hint.

A check is a coroutine that returns a Finding or raises; finding.py makes a result of either, so that no check can end
the examination. examination.py runs the groups of checks in order. A group is an async generator of results that
leaves nothing behind: every probe has a unique name and is deleted, also when the check fails half-way.
"""
