"""The paper's tables and figures, ablations and the records behind them: `python -m experiments` in a checkout.

Records of finished runs are in `results/` (`results_store`), what an experiment consists of in `grid`; `reproduce`
trains what is missing, `output` writes tables and figures.
"""
