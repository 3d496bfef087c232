-- The cookbook. A recipe begins with "-- # Title"; comment lines below it say what it tells.

-- # Which agent learns slowest
-- The gap to the teacher in the first and the last tenth of the steps, by agent; the smallest recovery comes first.
with by_step as (
    select step, agent, sum(gap_sum) as gap, sum(num_finite) as tokens, sum(reward) as reward, count(reward) as rewards
    from samples where status = 'trained' group by all
), ranked as (
    select *, percent_rank() over (partition by agent order by step) as place from by_step
)
select agent,
    sum(gap) filter (where place <= 0.1) / sum(tokens) filter (where place <= 0.1) as gap_first,
    sum(gap) filter (where place >= 0.9) / sum(tokens) filter (where place >= 0.9) as gap_last,
    sum(reward) filter (where place <= 0.1) / sum(rewards) filter (where place <= 0.1) as reward_first,
    sum(reward) filter (where place >= 0.9) / sum(rewards) filter (where place >= 0.9) as reward_last,
    1 - gap_last / nullif(gap_first, 0) as recovered
from ranked group by agent order by recovered nulls first, agent;

-- # Gap by agent and response position
-- Where in the response the teacher still disagrees, over the last ten trained steps.
select agent, response_position, count(*) filter (where finite) as tokens,
    avg(gap) filter (where finite) as gap, avg(abs(gap)) filter (where finite) as abs_gap
from tokens
where trained and step > (select max(step) - 10 from steps)
group by all order by agent, response_position;

-- # The worst tokens of a step
-- What the teacher finds least likely, in the newest trained step.
select sample_id, agent, response_position, token, student_logprob, teacher_logprob, gap, advantage
from tokens
where trained and finite and step = (select max(step) from steps)
order by gap, sample_id, position limit 20;

-- # The worst sample of each agent
-- The largest disagreement with the teacher in the last ten trained steps; show it with opd show RUN SAMPLE_ID.
select agent, sample_id, step, gap_mean, num_finite, reward, prompt, response_text
from samples
where status = 'trained' and num_finite > 0 and step > (select max(step) - 10 from steps)
qualify row_number() over (partition by agent order by gap_mean, sample_id) <= 3
order by agent, gap_mean;

-- # Samples masked by the sequence-error test
-- Members of a step that took no part in its loss because sampler and trainer disagree about them.
select step, sample_id, agent, seq_logprob_error, reward, num_tokens, mask_reason
from samples
where mask_reason like 'seq_logprob_error:%'
order by seq_logprob_error desc limit 50;

-- # Staleness
-- How many weight versions lie between a sample and the step that trained it.
select step - 1 - weight_version as staleness, count(*) as samples,
    round(100.0 * count(*) / sum(count(*)) over (), 1) as percent
from samples where step is not null and weight_version is not null
group by all order by staleness;

-- # How long teachers waited
-- Seconds between the end of a claim and the next one, by teacher; what is not working is waiting.
with claims as (
    select claim, min(worker) as worker, min(time) filter (where kind = 'claimed') as started,
        max(time) filter (where kind in ('committed', 'failed', 'released')) as ended
    from events where task = 'teacher' and claim is not null group by claim
), paused as (
    select *, epoch(started - lag(ended) over (partition by worker order by started)) as waited from claims
)
select worker, count(*) as claims, sum(epoch(ended - started)) as working_s,
    sum(greatest(waited, 0)) as waiting_s, max(waited) as longest_wait_s
from paused group by worker order by worker;

-- # Throughput of each stage
-- Rows a second while the stage works, and its share of the time from its first claim to its last.
with claims as (
    select partition, task, claim, max(rows) filter (where kind = 'claimed') as rows,
        min(time) filter (where kind = 'claimed') as started, max(time) filter (where kind = 'committed') as ended
    from events where task is not null and claim is not null group by all
)
select partition, task, count(*) as claims, sum(rows) as rows, sum(epoch(ended - started)) as working_s,
    sum(rows) / nullif(sum(epoch(ended - started)), 0) as rows_per_s,
    sum(epoch(ended - started)) / nullif(epoch(max(ended) - min(started)), 0) as busy
from claims where ended is not null group by all order by partition, min(started);

-- # Which weights produced a sample
-- The versions that sampled it and the step that trained it, newest first.
select sample_id, agent, weight_version, weight_version_max, step, step - 1 as trained_version,
    step - 1 - weight_version as staleness, attempt
from samples where weight_version is not null and step is not null
order by step desc, sample_id limit 50;

-- # Advantage against reward
-- Whether what the teacher prefers is what the checker rewards.
select agent, reward, count(*) as samples, sum(num_finite) as tokens, sum(gap_sum) / nullif(sum(num_finite), 0) as gap,
    avg(gap_mean) filter (where isfinite(gap_mean)) as mean_of_samples
from samples where status = 'trained' and isfinite(gap_sum)
group by agent, reward order by agent, reward;

-- # Entropy collapse
-- The student's entropy by step beside its teacher's; a fall to zero long before the gap closes is a collapse.
select step, agent, avg(student_entropy) filter (where isfinite(student_entropy)) as student,
    avg(teacher_entropy) filter (where isfinite(teacher_entropy)) as teacher,
    count(*) filter (where student_entropy < 0.01) as nearly_deterministic, count(*) as samples
from samples where status = 'trained' group by all order by step, agent;

-- # Where samples were lost
-- Every status with the codes behind it, and one sample of each to look at.
select partition, status, split_part(coalesce(error, mask_reason, ''), ':', 1) as code, count(*) as samples,
    min(sample_id) as example
from samples group by all order by samples desc, status, code;

-- # Truncated responses
-- How often the budget ran out before the student stopped, by agent and step.
select step, agent, avg((finish_reason = 'length')::int) as truncated, avg(num_tokens) as mean_tokens,
    max(num_tokens) as longest
from samples where status in ('trained', 'masked') group by all order by step, agent;

-- # Sampler against trainer
-- Tokens on which the two engines disagree most about the same weights; large numbers point to an engine.
select step, sample_id, position, token, generation_logprob, student_logprob,
    abs(generation_logprob - student_logprob) as apart
from tokens
where trained and isfinite(generation_logprob - student_logprob) and step = (select max(step) from steps)
order by apart desc, sample_id, position limit 20;

-- # Tokens outside the importance gate
-- Share of tokens whose weight exp(student - sampler) leaves 0.2 … 5, in the last ten trained steps.
select step, count(*) as tokens,
    count(*) filter (where exp(student_logprob - generation_logprob) not between 0.2 and 5) as outside,
    outside / count(*) as share, max(exp(student_logprob - generation_logprob)) as largest
from tokens
where trained and step > (select max(step) - 10 from steps)
group by step order by step;

-- # Held-out accuracy by weights
-- Greedy answers of each validated version.
select weight_version, agent, count(*) as prompts, avg(reward) as accuracy
from samples where partition = 'validation' and reward is not null group by all order by weight_version, agent;

-- # What a step cost
-- Wall time of each step, and the store's and the controller's part of it.
select step, wall_s, plane_s, plane_s / wall_s as plane_share, trained_tokens / wall_s as tokens_per_s
from steps order by step;
