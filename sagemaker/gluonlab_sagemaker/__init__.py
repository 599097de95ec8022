"""What `sagemaker/launch.py` is made of.

A module imports only those that stand further down here, or to its right.

commands                      options in, what was done out
job_commands machine_commands
job_role_commands             those about rights
listing options               what several commands share
create resize notebook jobs   what is done, as a sequence of calls
job_role                      what a job, and who submits it, may do
role startup source images    what a notebook or a job needs beside itself
price_list quota              what AWS says of prices and quotas
logs                          what a job has printed
waiting                       until a status is reached
calls                         one call to AWS, or the rehearsal of it
instances cost checks errors
"""
