"""Python imports this module at its start: a child of a test runs with the module changed that its parent has."""

from tools.changed import install_from_environment

install_from_environment()
