"""stub"""
def can_register(): return False
class PinnedViews: pass
