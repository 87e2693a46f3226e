# helm.py CHART VALUES: renders a chart as `helm template` does, by Helm's own code as the package helm-python-sdk has it.
import json
import sys

import helm_python as helm

chart, values = sys.argv[1], json.loads(sys.argv[2])
try:
    report = helm.lint(chart, values, strict=True)
    rendered = helm.Chart.load(chart).render(values, name="proxier-demo", namespace="kube-system")
except helm.HelmError as error:
    sys.exit(str(error))
problems = [message for message in report["messages"] if message["severity"] > 1]
if problems:
    sys.exit(json.dumps(problems))
print("\n---\n".join(rendered.values()))
