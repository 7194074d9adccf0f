"""Embedded services, and the supervisor that starts and stops everything on a single machine.

``home`` manages the data folder, ``embedded`` the PostgreSQL and Redis servers, ``processes`` the child
processes; ``stack`` combines them for ``trainyard up`` and ``trainyard demo``.
"""
