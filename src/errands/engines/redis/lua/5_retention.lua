-- Removes some contexts that have not changed since a moment; says how many.
jobs.forget_contexts = function(job)
    local old = redis.call('ZRANGEBYSCORE', BASE .. 'contexts', '-inf', job.before, 'LIMIT', 0, job.limit)
    for _, context in ipairs(old) do
        redis.call('DEL', BASE .. 'context:' .. context)
        redis.call('ZREM', BASE .. 'contexts', context)
    end
    return {tostring(#old)}
end
