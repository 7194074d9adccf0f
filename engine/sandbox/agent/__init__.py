"""The agent that runs inside every sandbox and executes all operations there.

A folder of standard-library-only modules that is made readable inside the sandbox and started as ``python -I
-S -c 'import sys; sys.path[:0] = ["…"]; from agent.main import main; main()'``. Five modules hold its parts:
``wire`` (frames), ``children`` and ``processes`` (commands), ``limits`` (what they may use), ``files`` (the
file system). They import next to nothing because their start is most of a sandbox's start, and avoid what
Python 3.7 lacks because an image may bring an old one. The host side is ``engine.sandbox.client``; the README
next to it describes the frames.
"""
