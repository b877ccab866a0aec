from hypothesis import settings

settings.register_profile("minimoe", deadline=None, derandomize=True)    # a test that passes once passes always
settings.load_profile("minimoe")
