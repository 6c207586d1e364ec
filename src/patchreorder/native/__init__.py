MOST_PATCHES = 16
def fits(rows, columns): return False
