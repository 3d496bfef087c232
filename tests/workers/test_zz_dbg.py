import sys
sys.path.insert(0, "/work/main")
from tests.workers.test_ray import *
import torch
from dataplane import open_plane
def test_dbg(checkpoints, prompt_file, tmp_path):
    config = small_config(checkpoints, prompt_file, grpo__max_num_steps=5, checkpointing__period=2)
    try:
        run_on_ray(config, tmp_path / "run", {"generator": DiesOnce(tmp_path / "died")})
    except Exception as e:
        print(e)
    from workers.engines.hf_scorer import HFScorer
    eng = HFScorer.load(checkpoints/"student")
    with open_plane(str(tmp_path/"run"/"plane"), mode="r") as p:
        for r in p.sql("select sample_id, step, weight_version, weight_version_max, attempt, token_mask, input_ids, generation_logprobs, worker from samples left join (select 1 as worker) on true where partition='train' order by row_number() over ()").to_pylist():
            if r["input_ids"] is None: print(r["sample_id"], "none"); continue
            lp = eng.logprobs([r["input_ids"]], 1.0)[0]
            m = torch.tensor(r["token_mask"])
            print(r["sample_id"], r["step"], r["weight_version"], r["weight_version_max"], r["attempt"], float((lp-torch.tensor(r["generation_logprobs"]))[m].abs().max()))
        for e in p.sql("select seq, kind, task, worker, attempt, step, version, rows, substr(detail,1,100) d from events where kind not in ('renewed')").to_pylist()[:80]: print({k:v for k,v in e.items() if v is not None})
