"""Seccomp profile of sandboxed processes, and its forms for the kernel and container runtimes.

``syscalls.tsv`` is the table (name, numbers, verdict), ``profile`` reads it and adds the rules on arguments,
``bpf`` compiles both to the kernel's own form for bubblewrap, ``oci`` to the JSON of Docker and the kubelet.
Change verdicts in the table only; ``conformance.syscalls`` checks it on every backend.
"""
