"""What judges other packages, and ages with them: python -m survey. Tables and pictures are made by
benchmarks/pages.py, and oneDNN is called as there; benchmarks/ needs nothing of survey/.
"""
