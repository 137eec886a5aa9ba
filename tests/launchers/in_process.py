"""A worker that is no process: what is asked of it is done here, which takes no time to start and can be patched."""

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
