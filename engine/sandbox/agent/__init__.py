"""The agent that runs inside every sandbox and executes all operations there.

A folder of standard-library-only modules, mounted into the sandbox and started as ``python -I -S -c 'import
sys; sys.path[:0] = ["…"]; from agent.main import main; main()'``. Five modules implement the protocol:
``wire`` (frames), ``children`` and ``processes`` (commands), ``limits`` (of processes and memory), ``files``
(the file system). They import little, because importing is most of a sandbox's start-up time, and support
Python 3.7, because an image may have an old one. The host side is ``engine.sandbox.client``; the README next
to it describes the frames.
"""
