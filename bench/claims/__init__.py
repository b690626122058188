"""A file, or two, for each published claim or a few that are alike; ``bench.plan`` lists them.

Each has a docstring, which its ``--help`` prints, and

* ``Options``, what is run: its ``check`` completes the options, or refuses what cannot work;
* ``measure``, which takes the options, whose ``scratch`` is an empty folder on the fast disk, does
  all runs, and returns the result, or raises a NotPossibleError where this machine lacks something;
* ``TABLES`` by their names in documents: the columns of a table of all points, or what makes the
  rows of a result (``rows``), of which the first one is the header;

and may have

* ``TARGETS``, what is wanted of the runs, by the names of their points;
* ``marks``, which makes of a result what its figure shows, see :func:`bench.harness.figures.draw`,
  and ``AXES``, its settings;
* ``faults``, which returns every reason for which a result is a failure;
* ``NEEDS``, the modules without which nothing can be measured, if that is not Chainer alone.

What has such a name says in a docstring only what is not said here.
"""
