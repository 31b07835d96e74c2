"""The loop, round by round: look at each, and leave it once the model is good enough.

python examples/07_loop.py
"""

import fedreach as fr

digits = fr.load("digits").partition("dirichlet_by_class", clients=20, alpha=0.3, participants=8)
for row in fr.run(digits, fr.Method(solver="scaffold"), cohort_size=4, local={"epochs": 5}, rounds=50):
    print(f"round {row['round']:2}: clients {row['cohort']}, unseen clients {row['unseen_accuracy']:.3f}")
    if row["unseen_accuracy"] > 0.8:
        break
