"""The binary units of memory and storage sizes, in bytes."""

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
