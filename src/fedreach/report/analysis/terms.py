"""The terms of the papers' bounds, each declared once: what it is called, how it is shown, and what it means."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Term:
    """One of the terms that `theory.terms` computes."""

    name: str
    header: str  # of its column
    title: str  # above its curve
    unit: str
    places: int  # after the point; a distance between distributions, in per cent, has one
    heading: str
    words: str

    @property
    def percent(self) -> bool:
        """Whether it is a fraction, shown in per cent."""
        return self.unit == "%"


TERMS = (
    Term(
        "entropy",
        "label entropy",
        "Label entropy of those averaged, nats",
        "nats",
        2,
        "Label entropy",
        "Sum of w_i H(p_i) over the clients i averaged in a round: w_i is the weight, p_i the mix of labels. The "
        "larger it is, the lower is the bound on the gap between all clients and those that train (“Advocating "
        "for the Silent”, Theorem 1, eq. 5 and 8). H is estimated by the client's counts of true labels, which is "
        "all of it only where clients differ in labels alone. The bound of the loss is set to 1, and summands that "
        "no choice of clients or weights changes are left out.",
    ),
    Term(
        "left_out",
        "left out",
        "Left out: distance to the nearest chosen, %",
        "%",
        1,
        "Left out",
        "Mean, over the participants not averaged in a round, of the total variation between their labels and "
        "those of the averaged client most like them: the smaller, the better the cohort stands for them. It takes "
        "the place of the cross-entropies H(P_i, P_j) in “Advocating for the Silent”, Theorem 2, eq. 7, which are "
        "infinite where j lacks a class of i.",
    ),
    Term(
        "label_gap",
        "label gap",
        "Label gap of one round's average, %",
        "%",
        1,
        "Label gap",
        "Total variation between the labels of one round's average, the sum of w_i p_i, and those of all clients "
        "together, unseen ones included. Times the bound of the loss (here 1) it bounds what unlike clients add "
        "to the generalisation error: A3 in the proof of Theorem 1, eq. 24, of “Data Heterogeneity-Aware Client "
        "Selection”, again where clients differ in labels alone. Of all rounds together, it is that of the mean of "
        "the rounds so far: what stays is the bias of selection and weights, which no number of rounds evens out.",
    ),
    Term("label_gap_so_far", "all rounds", "Label gap of all rounds so far, %", "%", 1, "", ""),
    Term(
        "label_gap_alone",
        "one by one",
        "Label gap of the clients one by one, %",
        "%",
        1,
        "One by one",
        "Sum of w_i times the total variation between p_i and the labels of all clients: the label gap before "
        "averaging evens it out. It stands for the sum of KL(p_g || p_k) in Theorem 1, eq. 22, of the same paper, "
        "which is infinite as soon as a client lacks a class, and in whose place the mean root of ½ KL "
        "must stand for the theorem to hold; that is never below this.",
    ),
    Term(
        "disagreement",
        "disagreement",
        "Bound disagreement of the local models",
        "",
        3,
        "Bound disagreement",
        "Sum of w_i η_i, η_i the gap between upper and lower bound of client i's squared loss when its "
        "distribution shifts, added up over distances (“Aggregation Weighting of Federated Learning via "
        "Generalization Bound Estimation”, eq. 18 to 20), as the clients measured it after training.",
    ),
    Term(
        "wlrc",
        "Rademacher score",
        "Rademacher score of the local models",
        "",
        4,
        "Rademacher score",
        "Mean score of the clients averaged (“Client Selection with Rademacher Complexity”, Algorithms 1 and 2), "
        "as they measured it: how well random signs fit their model's outputs. It is no bound and takes no "
        "supremum over models; it is comparable between equal batch sizes only.",
    ),
)

RECORDED = (*(term.name for term in TERMS), "label_divergence")  # those that stand in CSV and JSON
