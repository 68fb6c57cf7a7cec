"""The subcommands of ``transferqueue``, one module each.

A module imports click at its top and everything else where it runs, so that ``--help`` is quick:
neither torch nor ray is imported by asking what there is. What a command prints for people is
made from the same plain values that ``--json`` prints.
"""
