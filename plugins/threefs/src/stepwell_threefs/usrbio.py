"""Pages through USRBIO."""
def usrbio_of(config, context):
    return None
