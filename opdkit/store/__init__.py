"""Run directories: plans pinned in manifests, parts committed by rename, resume, shards, counters in the footers.

    stage = Stage.open(config, "judge", [VERDICTS], parts=12, upstream=["extract"])
    for part in stage.todo():
        with stage.writing(part) as out:
            out.add_rows("verdicts", rows)
            out.counters.drop("no_quorum")
    return stage.summary()

A part that exists is complete: it was written beside its folder, synced and renamed into place. Its footer holds the
fingerprint of its plan and its counters; the summary of a stage is the sum over its footers. Each page has a CRC, which
every reader here verifies. digests.py records a digest of each file, which `opdkit check` verifies.
"""
