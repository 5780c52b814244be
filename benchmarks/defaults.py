import argparse
from pathlib import Path
import defaults_search
p=argparse.ArgumentParser(); sub=p.add_subparsers(dest="command")
s=sub.add_parser("search"); s.add_argument("--workers",type=int,default=1); s.add_argument("--out",type=Path); s.add_argument("--minutes",type=float,default=5)
a=p.parse_args()
defaults_search.search(a.workers,a.out,a.minutes)
