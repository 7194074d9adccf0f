"""System calls of sandboxed processes: one profile, and the forms in which kernels and runtimes take it.

``syscalls.tsv`` is the table (name, numbers, verdict), ``profile`` reads it and adds the rules on arguments,
``bpf`` compiles both to the kernel's own form for bubblewrap, ``oci`` to the JSON of Docker and the kubelet.
A verdict is changed in the table and nowhere else; ``conformance.syscalls`` checks it on every backend.
"""
