"""A worker without a process: its requests are served here, so it starts at once and can be patched."""

import json

from longspan.launchers import worker


class InProcess:
    stopped_by = deadline = None
    out_of_time = False

    def __init__(self, memory_bytes, adopted, environment):
        pass

    def ask(self, request, seconds):
        return json.loads(json.dumps(worker.answer(json.loads(json.dumps(request)))))

    def pause(self):
        pass

    go_on = end = pause
