"""The sub-commands of `radiance`, by what they are for. Like cli.py they parse and print, and decide nothing."""
