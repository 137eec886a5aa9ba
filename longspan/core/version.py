"""The version of the package; this file is the only place that has it."""

VERSION = "0.1.0"
