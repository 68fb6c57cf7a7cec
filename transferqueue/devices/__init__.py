"""Memory of accelerators, behind one contract: `transferqueue.devices.base` is the manual."""
