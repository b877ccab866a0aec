import signal

from hypothesis import settings

from minimoe.cli import settle

settle()    # as every command does, before anything imports NumPy
signal.signal(signal.SIGINT, signal.default_int_handler)                 # but Ctrl-C is pytest's
settings.register_profile("minimoe", deadline=None, derandomize=True)    # a test that passes once passes always
settings.load_profile("minimoe")
