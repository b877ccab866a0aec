from hypothesis import settings

from minimoe.cli import settle

settle()    # as every command does, before anything imports NumPy
settings.register_profile("minimoe", deadline=None, derandomize=True)    # a test that passes once passes always
settings.load_profile("minimoe")
