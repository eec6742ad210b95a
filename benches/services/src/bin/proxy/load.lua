-- Prints the results in one line; times are in microseconds.
done = function(summary, latency)
    local errors = summary.errors
    print("load", summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
        errors.connect, errors.read, errors.write, errors.status, errors.timeout)
end
