"""Names of the benchmarks, apart from all that reads them so that the command line can list them at once."""

BENCHMARK_NAMES = ("cifar10", "svhn", "fashion", "blood", "organa", "organc", "organs", "organa-sample", "digits")
