"""Implementation of `sagemaker/launch.py`.

A module imports only modules that are listed further down, or to its right.

commands                      options of the notebook commands, and their output
job_commands machine_commands
job_role_commands             options of the commands about permissions
listing options               shared by several commands
create resize notebook jobs   sequences of calls to AWS
job_role                      permissions of jobs and of the people who submit jobs
role startup source images    roles, scripts, archives and images for notebooks and jobs
price_list quota              prices and quotas from AWS
logs                          output of a training job
waiting                       waiting for a status
calls                         calls to AWS, and their dry run
instances cost checks errors
"""
