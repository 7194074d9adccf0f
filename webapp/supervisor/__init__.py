"""Embedded services and the one supervisor that starts and stops everything on a single machine.

``home`` knows the data folder, ``embedded`` the PostgreSQL and Redis servers, ``processes`` keeps
child processes running, ``stack`` puts them together for ``manage.py up`` and ``manage.py demo``.
"""
